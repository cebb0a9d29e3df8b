"""A bilingual table of everyday topics, shared by the English and the Japanese chat generator.

Every topic carries the same attributes in both languages, so that an answer is determined by its topic and its intent
and a small model can learn the attributes once and combine them with intents that it never saw them with.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """One topic: `key` names it in held-out lists, the `en_*`/`ja_*` fields fill the answer frames."""

    key: str
    kind: str
    en_name: str
    en_tool: str
    en_place: str
    en_step: str
    en_benefit: str
    ja_name: str
    ja_tool: str
    ja_place: str
    ja_step: str
    ja_benefit: str


_ROWS = """
cooking|food|cooking|a sharp knife|the kitchen|learn three simple dishes|your daily meals taste better|料理|よく切れる包丁|台所|簡単な料理を三つ覚える|毎日の食事がおいしくなります
baking|food|baking bread|a large bowl|the kitchen|bake a small round loaf|the whole house smells good|パン作り|大きなボウル|台所|小さな丸いパンを焼く|家中がいい香りになります
tea|food|making tea|a small teapot|a quiet room|measure the leaves carefully|your mind becomes calm|お茶|小さな急須|静かな部屋|茶葉の量をきちんと量る|心が落ち着きます
coffee|food|brewing coffee|a paper filter|the kitchen table|pour the hot water slowly|the mornings become pleasant|コーヒー|紙のフィルター|台所の机|お湯をゆっくり注ぐ|朝の時間が楽しくなります
gardening|outdoor|gardening|a small shovel|the garden|plant a few easy flowers|you can feel the seasons|庭仕事|小さなシャベル|庭|育てやすい花を少し植える|季節を感じることができます
vegetables|outdoor|growing vegetables|a deep pot|a sunny balcony|grow small tomatoes|you can eat fresh vegetables|野菜作り|深い鉢|日の当たるベランダ|小さなトマトを育てる|新鮮な野菜が食べられます
hiking|outdoor|hiking|a pair of strong shoes|a low mountain|choose a short path|you can enjoy a wide view|山歩き|丈夫な靴|低い山|短い道を選ぶ|広い景色を楽しめます
camping|outdoor|camping|a light tent|a lake shore|stay for one night only|you can see many stars|キャンプ|軽いテント|湖のほとり|一泊だけ泊まってみる|たくさんの星が見られます
fishing|outdoor|fishing|a long rod|a calm river|learn to tie the line|you learn to wait patiently|釣り|長い竿|静かな川|糸の結び方を覚える|ゆっくり待つ心が育ちます
cycling|outdoor|cycling|a good helmet|a river road|ride for twenty minutes|your legs become strong|自転車|良いヘルメット|川沿いの道|二十分だけ走る|足が強くなります
birds|outdoor|watching birds|a pair of binoculars|a quiet forest|learn the names of five birds|you notice small sounds|野鳥の観察|双眼鏡|静かな森|鳥の名前を五つ覚える|小さな音に気がつくようになります
stars|outdoor|watching the stars|a star map|a dark hill|find one bright star|the night sky becomes familiar|星の観察|星の地図|暗い丘|明るい星を一つ見つける|夜空が身近になります
running|body|running|a pair of light shoes|the park|run slowly for ten minutes|your heart becomes strong|ランニング|軽い靴|公園|十分間ゆっくり走る|心臓が強くなります
walking|body|walking|a comfortable coat|the neighborhood|walk to the next station|you discover new shops|散歩|着やすい上着|近所|次の駅まで歩く|新しいお店が見つかります
swimming|body|swimming|a pair of goggles|the city pool|practice breathing in the water|your whole body becomes strong|水泳|水中眼鏡|市民プール|水の中で息を吐く練習をする|全身が強くなります
yoga|body|yoga|a soft mat|the living room|learn three easy poses|your body becomes flexible|ヨガ|柔らかいマット|居間|簡単な姿勢を三つ覚える|体が柔らかくなります
dance|body|dancing|a large mirror|a dance studio|repeat the basic steps|you move with the music|ダンス|大きな鏡|ダンス教室|基本の動きを繰り返す|音楽に合わせて動けるようになります
tennis|body|tennis|a light racket|the tennis court|hit the ball against a wall|you make new friends|テニス|軽いラケット|テニスコート|壁に向かってボールを打つ|新しい友達ができます
baseball|body|baseball|a leather glove|the school ground|play catch with a friend|you learn to work in a team|野球|革のグローブ|学校の運動場|友達とキャッチボールをする|協力する力がつきます
drawing|craft|drawing|a soft pencil|a bright desk|draw one fruit each day|you look at things closely|絵|柔らかい鉛筆|明るい机|毎日果物を一つ描く|物をよく見るようになります
calligraphy|craft|calligraphy|a good brush|a quiet table|write one large letter|your writing becomes beautiful|書道|良い筆|静かな机|大きな字を一つ書く|字がきれいになります
pottery|craft|pottery|a lump of clay|a pottery class|make a small cup|you can use your own dishes|陶芸|粘土|陶芸教室|小さな湯のみを作る|自分の器を使えるようになります
sewing|craft|sewing|a fine needle|a bright window|sew a simple bag|you can repair your clothes|裁縫|細い針|明るい窓のそば|簡単な袋を縫う|服を直せるようになります
knitting|craft|knitting|a ball of thick wool|a warm sofa|knit a short scarf|you can give warm presents|編み物|太い毛糸|暖かいソファー|短いマフラーを編む|暖かい贈り物ができます
woodwork|craft|woodworking|a small saw|the garage|build a simple shelf|your room becomes convenient|木工|小さなのこぎり|車庫|簡単な棚を作る|部屋が便利になります
origami|craft|origami|a set of colored paper|a flat table|fold one paper crane|your fingers become skillful|折り紙|色紙|平らな机|鶴を一羽折る|指先が器用になります
photo|craft|photography|a small camera|an old street|take one picture each day|you can keep your memories|写真|小さなカメラ|古い町並み|毎日一枚撮る|思い出を残すことができます
piano|mind|the piano|a simple score|a music room|play with one hand first|you can enjoy many songs|ピアノ|簡単な楽譜|音楽室|片手だけで弾いてみる|いろいろな曲を楽しめます
guitar|mind|the guitar|a set of new strings|your own room|learn three chords|you can sing with friends|ギター|新しい弦|自分の部屋|和音を三つ覚える|友達と一緒に歌えます
singing|mind|singing|a short song book|a karaoke room|breathe deeply and slowly|your voice becomes clear|歌|短い歌の本|カラオケの部屋|深くゆっくり息をする|声がきれいになります
reading|mind|reading|a thin book|the library|read ten pages each day|you learn new words|読書|薄い本|図書館|毎日十ページ読む|新しい言葉を覚えられます
diary|mind|keeping a diary|a small notebook|a bedside table|write three lines each night|your thoughts become clear|日記|小さなノート|枕元の机|毎晩三行書く|考えが整理できます
english|mind|English|a thin textbook|a coffee shop|learn five words each day|you can talk with more people|英語|薄い教科書|喫茶店|毎日単語を五つ覚える|もっと多くの人と話せます
chess|mind|chess|a wooden board|a chess club|learn how each piece moves|you think before you act|チェス|木の盤|チェスクラブ|駒の動かし方を覚える|よく考える力がつきます
shogi|mind|shogi|a folding board|the community hall|solve one short problem|your memory becomes better|将棋|折りたたみの盤|公民館|短い問題を一つ解く|記憶力が良くなります
programming|mind|programming|an ordinary laptop|a study desk|write a very short program|your work becomes faster|プログラミング|普通のパソコン|勉強机|とても短いプログラムを書く|仕事が速くなります
cleaning|home|cleaning|a dry cloth|the entrance|tidy one drawer first|you find things quickly|掃除|乾いた布|玄関|引き出しを一つ片付ける|物がすぐに見つかります
saving|home|saving money|a small account book|the dining table|write down what you buy|you can prepare for the future|貯金|小さな家計簿|食卓|買った物を書き出す|将来に備えることができます
sleep|home|sleeping well|a low pillow|a dark bedroom|turn off the phone early|the next day goes well|よく眠ること|低い枕|暗い寝室|早めに電話を切る|次の日が快適になります
travel|home|traveling|a light bag|a small station|choose one town to visit|you see new things|旅行|軽いかばん|小さな駅|訪ねる町を一つ選ぶ|新しいものが見られます
pets|home|living with a dog|a soft leash|the living room|keep the same meal time|every day becomes lively|犬との暮らし|柔らかい首輪|居間|食事の時間を決める|毎日がにぎやかになります
flowers|home|arranging flowers|a tall vase|the entrance|cut the stems at an angle|the room becomes bright|生け花|背の高い花瓶|玄関|茎を斜めに切る|部屋が明るくなります
"""

TOPICS: tuple[Topic, ...] = tuple(Topic(*row.split("|")) for row in _ROWS.strip().splitlines())

CAUTIONS: dict[str, tuple[str, str]] = {
    "food": ("Wash your hands and watch the fire.", "手をよく洗い、火から目を離さないでください。"),
    "outdoor": ("Check the weather and drink enough water.", "天気を確かめて、水をしっかり飲んでください。"),
    "body": ("Warm up first and stop when something hurts.", "最初に準備運動をして、痛いときはすぐに休んでください。"),
    "craft": ("Keep the table clean and rest your eyes.", "机の上をきれいにして、時々目を休ませてください。"),
    "mind": ("Do not hurry and take a short break every hour.", "急がずに、一時間ごとに短い休みを取ってください。"),
    "home": ("Do not try to do everything on one day.", "一日で全部やろうとしないでください。"),
}
